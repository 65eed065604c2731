//! A document before anybody knows what it means: TOML and JSON read into one tree.
//!
//! Both forms go through the same tree, so they cannot differ in what they accept. It refuses what
//! either parser would let through silently (a key written twice, NUL), and its errors keep the
//! key or variant that was not known, so that nothing is read back out of a message.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::{MapDeserializer, SeqDeserializer, StringDeserializer};
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde::{Deserialize, forward_to_deserialize_any};

/// The largest document that is read: no honest one comes near it, and it bounds every list and
/// text inside.
pub const DOCUMENT_BYTES_MAX: usize = 1 << 20;

/// One value of a document.
#[derive(Clone, Debug, PartialEq)]
pub enum Tree {
    /// JSON's `null`, or an empty document.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(i128),
    /// Another number.
    Float(f64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Tree>),
    /// A table.
    Table(BTreeMap<String, Tree>),
    /// A TOML date or time: nothing here uses one.
    Date,
}

/// Why a document was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// The syntax is wrong; the parser's own message with line and column.
    #[error("{0}")]
    Syntax(String),
    /// The document is larger than [`DOCUMENT_BYTES_MAX`].
    #[error("{bytes} bytes are more than {DOCUMENT_BYTES_MAX}")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// A text or key holds NUL.
    #[error("the text holds a NUL character")]
    Nul,
    /// A key that no field has.
    #[error("there is no key {field:?}")]
    UnknownKey {
        /// As written.
        field: String,
        /// The keys there are.
        known: &'static [&'static str],
    },
    /// A word that is none of the choices.
    #[error("{variant:?} is not one of {}", known.join(", "))]
    UnknownWord {
        /// As written.
        variant: String,
        /// The choices.
        known: &'static [&'static str],
    },
    /// A key that must be there is not.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// A value has another type.
    #[error("{0}")]
    Type(String),
    /// A value has the right type and is refused by its own rule.
    #[error("{0}")]
    Value(String),
}

impl de::Error for TreeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        TreeError::Value(message.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        TreeError::Type(format!("{} was found where {expected} was expected", kind(&found)))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        TreeError::Value(format!("{} was found where {expected} was expected", kind(&found)))
    }

    fn unknown_field(field: &str, known: &'static [&'static str]) -> Self {
        TreeError::UnknownKey { field: field.to_owned(), known }
    }

    fn unknown_variant(variant: &str, known: &'static [&'static str]) -> Self {
        TreeError::UnknownWord { variant: variant.to_owned(), known }
    }

    fn missing_field(field: &'static str) -> Self {
        TreeError::Missing(field)
    }
}

/// What was found, without the content of a text: it may be an argument or the value of a variable,
/// and a refusal is journalled (E4).
fn kind(found: &Unexpected<'_>) -> String {
    match found {
        Unexpected::Str(_) => "a text".to_owned(),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "a table".to_owned(),
        Unexpected::Unit => "nothing (null)".to_owned(),
        Unexpected::Bool(value) => format!("{value}"),
        Unexpected::Unsigned(value) => format!("the number {value}"),
        Unexpected::Signed(value) => format!("the number {value}"),
        Unexpected::Float(value) => format!("the number {value}"),
        Unexpected::Other(what) => (*what).to_owned(),
        _ => "another value".to_owned(),
    }
}

/// A [`TreeError`] and the key it is about, such as `network[0].ports[1]`; empty at the root.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {error}")]
pub struct Misread {
    /// Where.
    pub path: String,
    /// What.
    pub error: TreeError,
}

impl Misread {
    fn root(error: TreeError) -> Self {
        Misread { path: String::new(), error }
    }

    /// The known key or word nearest to the one that was written, when it is near enough to be a
    /// slip.
    pub fn suggestion(&self) -> Option<&'static str> {
        match &self.error {
            TreeError::UnknownKey { field, known } => nearest(field, known),
            TreeError::UnknownWord { variant, known } => nearest(variant, known),
            _ => None,
        }
    }
}

/// The choice nearest to `written`: at most one slip in three characters.
pub fn nearest(written: &str, known: &[&'static str]) -> Option<&'static str> {
    // A hostile key may be as long as the document, and the distance costs the product of both.
    if written.len() > 64 {
        return None;
    }
    let lower = written.to_lowercase().replace('-', "_");
    known
        .iter()
        .map(|name| (strsim::damerau_levenshtein(&lower, &name.replace('-', "_")), *name))
        .filter(|(slips, name)| *slips <= (name.len() / 3).max(1))
        .min()
        .map(|(_, name)| name)
}

impl Tree {
    /// Reads TOML.
    ///
    /// # Errors
    /// When it is too large, no TOML, or holds NUL.
    pub fn from_toml(text: &str) -> Result<Tree, Misread> {
        bounded(text)?;
        let tree: Tree = toml::from_str(text).map_err(|error| {
            // The parser's own text quotes the line, which may hold what E4 forbids.
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or(text);
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
            let place = format!("{} at line {line} column {column}", error.message());
            Misread::root(TreeError::Syntax(place))
        })?;
        tree.without_nul()
    }

    /// Reads JSON.
    ///
    /// # Errors
    /// When it is too large, no JSON, holds a key twice, or holds NUL.
    pub fn from_json(text: &str) -> Result<Tree, Misread> {
        bounded(text)?;
        let tree: Tree = serde_json::from_str(text)
            .map_err(|error| Misread::root(TreeError::Syntax(error.to_string())))?;
        tree.without_nul()
    }

    /// The value of a key, when this is a table that has it.
    pub fn get(&self, key: &str) -> Option<&Tree> {
        match self {
            Tree::Table(table) => table.get(key),
            _ => None,
        }
    }

    /// Reads the tree as a `T`.
    ///
    /// # Errors
    /// With the path of the value that does not fit.
    pub fn read<T: DeserializeOwned>(self) -> Result<T, Misread> {
        serde_path_to_error::deserialize(self).map_err(|error| {
            let path = error.path().to_string();
            let path = if path == "." { String::new() } else { path };
            Misread { path, error: error.into_inner() }
        })
    }

    fn without_nul(self) -> Result<Tree, Misread> {
        match self.find_nul(String::new()) {
            Some(path) => Err(Misread { path, error: TreeError::Nul }),
            None => Ok(self),
        }
    }

    /// The path of the first text or key with NUL. The parsers bound the depth.
    fn find_nul(&self, path: String) -> Option<String> {
        match self {
            Tree::Text(text) => text.contains('\0').then_some(path),
            Tree::List(items) => items
                .iter()
                .enumerate()
                .find_map(|(index, item)| item.find_nul(format!("{path}[{index}]"))),
            Tree::Table(table) => table.iter().find_map(|(key, value)| {
                let dot = if path.is_empty() { "" } else { "." };
                let below = format!("{path}{dot}{key}");
                if key.contains('\0') { Some(below) } else { value.find_nul(below) }
            }),
            Tree::Null | Tree::Bool(_) | Tree::Integer(_) | Tree::Float(_) | Tree::Date => None,
        }
    }
}

fn bounded(text: &str) -> Result<(), Misread> {
    match text.len() {
        bytes if bytes > DOCUMENT_BYTES_MAX => Err(Misread::root(TreeError::TooLarge { bytes })),
        _ => Ok(()),
    }
}

/// The key under which the TOML parser hands over a date.
const TOML_DATE_KEY: &str = "$__toml_private_datetime";

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Integer(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Tree, E> {
        Ok(Tree::Text(value))
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tree, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Tree::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Tree, A::Error> {
        let mut table = BTreeMap::new();
        while let Some((key, value)) = entries.next_entry::<String, Tree>()? {
            if key == TOML_DATE_KEY {
                return Ok(Tree::Date);
            }
            if table.contains_key(&key) {
                return Err(de::Error::custom(format_args!("key {key:?} is there twice")));
            }
            table.insert(key, value);
        }
        Ok(Tree::Table(table))
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tree, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

impl IntoDeserializer<'_, TreeError> for Tree {
    type Deserializer = Tree;

    fn into_deserializer(self) -> Tree {
        self
    }
}

impl<'de> Deserializer<'de> for Tree {
    type Error = TreeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TreeError> {
        match self {
            Tree::Null => visitor.visit_unit(),
            Tree::Bool(value) => visitor.visit_bool(value),
            Tree::Integer(value) => match (i64::try_from(value), u64::try_from(value)) {
                (Ok(value), _) => visitor.visit_i64(value),
                (_, Ok(value)) => visitor.visit_u64(value),
                _ => visitor.visit_i128(value),
            },
            Tree::Float(value) => visitor.visit_f64(value),
            Tree::Text(text) => visitor.visit_string(text),
            Tree::List(items) => visitor.visit_seq(SeqDeserializer::new(items.into_iter())),
            Tree::Table(table) => visitor.visit_map(MapDeserializer::new(table.into_iter())),
            Tree::Date => Err(de::Error::invalid_type(Unexpected::Other("a date"), &visitor)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TreeError> {
        // `null` is a value of the wrong type, not another way to leave a key out: two documents
        // with one meaning must have one digest.
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, TreeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TreeError> {
        match self {
            Tree::Text(word) => visitor.visit_enum(Word(word)),
            other => other.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// A choice written as one word.
struct Word(String);

impl<'de> EnumAccess<'de> for Word {
    type Error = TreeError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), TreeError> {
        let word: StringDeserializer<TreeError> = self.0.clone().into_deserializer();
        Ok((seed.deserialize(word)?, self))
    }
}

impl<'de> VariantAccess<'de> for Word {
    type Error = TreeError;

    fn unit_variant(self) -> Result<(), TreeError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _: T) -> Result<T::Value, TreeError> {
        Err(TreeError::Value(format!("{:?} needs a value", self.0)))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, TreeError> {
        Err(TreeError::Value(format!("{:?} needs a value", self.0)))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, TreeError> {
        Err(TreeError::Value(format!("{:?} needs a value", self.0)))
    }
}
