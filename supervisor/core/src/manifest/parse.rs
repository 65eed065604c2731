//! From text to a [`Manifest`]: syntax, version, keys, types and forms, each refused with its own
//! code and the path of the key.

use crate::{Code, Refusal};

use super::model::{Manifest, VERSION};
use super::tree::{DOCUMENT_BYTES_MAX, Misread, Tree, TreeError};
use super::{forms, model};

/// Reads a manifest written in TOML.
///
/// # Errors
/// `manifest.*` or `fs.bad_target`, with the path of the offending key.
pub fn parse_toml(text: &str) -> Result<Manifest, Refusal> {
    from_tree(Tree::from_toml(text).map_err(refused)?)
}

/// Reads a manifest written in JSON.
///
/// # Errors
/// `manifest.*` or `fs.bad_target`, with the path of the offending key.
pub fn parse_json(text: &str) -> Result<Manifest, Refusal> {
    from_tree(Tree::from_json(text).map_err(refused)?)
}

/// Reads the bytes of a manifest file in either form: a document that starts with `{` is JSON,
/// because no TOML document can.
///
/// # Errors
/// `manifest.*` or `fs.bad_target`, with the path of the offending key.
pub fn parse_bytes(bytes: &[u8]) -> Result<Manifest, Refusal> {
    if bytes.len() > DOCUMENT_BYTES_MAX {
        return Err(refused(Misread {
            path: String::new(),
            error: TreeError::TooLarge { bytes: bytes.len() },
        }));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        Refusal::new(Code::ManifestUnreadable, format!("the manifest is no UTF-8 at byte {at}"))
    })?;
    match text.trim_start().starts_with('{') {
        true => parse_json(text),
        false => parse_toml(text),
    }
}

fn from_tree(tree: Tree) -> Result<Manifest, Refusal> {
    check_version(&tree)?;
    let manifest: Manifest = tree.read().map_err(refused)?;
    forms::check(&manifest)?;
    Ok(manifest)
}

/// The version decides what every other key means, so it is looked at first.
fn check_version(tree: &Tree) -> Result<(), Refusal> {
    let found = match tree {
        Tree::Table(table) => match table.get("version") {
            Some(Tree::Integer(version)) if *version == i128::from(VERSION) => return Ok(()),
            Some(Tree::Integer(version)) => format!("version {version} is not known"),
            Some(_) => "version is no whole number".to_owned(),
            None => "version is missing".to_owned(),
        },
        _ => {
            let cause = "the manifest is no table of keys";
            return Err(Refusal::new(Code::ManifestUnreadable, cause));
        }
    };
    Err(Refusal::new(Code::ManifestUnknownVersion, found))
}

/// The code for what went wrong at a path.
fn code_of(misread: &Misread) -> Code {
    let path = misread.path.as_str();
    match &misread.error {
        TreeError::Syntax(_) => Code::ManifestUnreadable,
        TreeError::TooLarge { .. } => Code::ManifestTooLarge,
        TreeError::UnknownKey { .. } => Code::ManifestUnknownKey,
        TreeError::UnknownWord { known, .. } if known.contains(&model::Effect::Tool.as_str()) => {
            Code::ManifestUnknownEffect
        }
        TreeError::Missing("command" | "argv") => Code::ManifestNoCommand,
        TreeError::Value(_) if path.starts_with("limits.") => Code::ManifestBadLimit,
        TreeError::Value(_) if path == "budget.usd" => Code::BudgetBadAmount,
        TreeError::Value(_) if path == "budget.account" => Code::BudgetBadAccount,
        _ => Code::ManifestBadValue,
    }
}

/// A refusal that names the path, and the nearest key or word when there is one.
fn refused(misread: Misread) -> Refusal {
    let code = code_of(&misread);
    let path = forms::shown_path(&misread.path);
    let error = forms::shown(&misread.error.to_string());
    let cause = match (&misread.error, path.is_empty()) {
        (TreeError::UnknownKey { .. }, _) => format!("the manifest has no key `{path}`"),
        (_, true) => error,
        (_, false) => format!("{path}: {error}"),
    };
    let refusal = Refusal::new(code, cause);
    match misread.suggestion() {
        Some(near) => refusal.with_help(format!("did you mean `{near}`?")),
        None => refusal,
    }
}
