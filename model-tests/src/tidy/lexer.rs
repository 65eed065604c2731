//! Separates Rust code from comments and from the contents of literals, which is all that the rules
//! need to know of the language.

/// A text in two layers of the same shape: what is not in a layer is blank in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layers {
    /// Code; literals are empty.
    pub code: String,
    /// Comments, documentation included.
    pub comments: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Code,
    Comments,
    Nowhere,
}

struct Cursor<'a> {
    rest: &'a str,
    code: String,
    comments: String,
}

impl Cursor<'_> {
    /// Moves `count` characters to one layer and leaves the other blank.
    fn take(&mut self, count: usize, to: To) {
        let mut letters = self.rest.chars();
        for letter in letters.by_ref().take(count) {
            let blank = if letter == '\n' { '\n' } else { ' ' };
            self.code.push(if to == To::Code { letter } else { blank });
            self.comments.push(if to == To::Comments { letter } else { blank });
        }
        self.rest = letters.as_str();
    }

    fn line_comment(&mut self) {
        let end = self.rest.find('\n').unwrap_or(self.rest.len());
        let count = self.rest.get(..end).map_or(0, |line| line.chars().count());
        self.take(count, To::Comments);
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        while !self.rest.is_empty() {
            if self.rest.starts_with("/*") {
                depth += 1;
                self.take(2, To::Comments);
            } else if self.rest.starts_with("*/") {
                depth -= 1;
                self.take(2, To::Comments);
                if depth == 0 {
                    return;
                }
            } else {
                self.take(1, To::Comments);
            }
        }
    }

    fn quoted(&mut self, quote: char) {
        self.take(1, To::Code);
        while let Some(letter) = self.rest.chars().next() {
            if letter == '\\' {
                self.take(2, To::Nowhere);
            } else if letter == quote {
                return self.take(1, To::Code);
            } else {
                self.take(1, To::Nowhere);
            }
        }
    }

    /// A raw string at its first `#` or `"`.
    fn raw(&mut self) {
        let hashes = self.rest.chars().take_while(|c| *c == '#').count();
        let end = format!("\"{}", "#".repeat(hashes));
        self.take(hashes + 1, To::Code);
        while !self.rest.is_empty() && !self.rest.starts_with(&end) {
            self.take(1, To::Nowhere);
        }
        self.take(hashes + 1, To::Code);
    }
}

/// Separates a source text.
pub fn layers(text: &str) -> Layers {
    let mut cursor = Cursor { rest: text, code: String::new(), comments: String::new() };
    let mut before = ' ';
    while let Some(letter) = cursor.rest.chars().next() {
        let word = before.is_alphanumeric() || before == '_';
        if cursor.rest.starts_with("//") {
            cursor.line_comment();
        } else if cursor.rest.starts_with("/*") {
            cursor.block_comment();
        } else if !word && let Some(prefix) = raw_prefix(cursor.rest) {
            cursor.take(prefix, To::Code);
            cursor.raw();
        } else if letter == '"' {
            cursor.quoted('"');
        } else if letter == '\'' && is_char_literal(cursor.rest) {
            cursor.quoted('\'');
        } else {
            cursor.take(1, To::Code);
        }
        before = letter;
    }
    Layers { code: cursor.code, comments: cursor.comments }
}

/// Letters before the hashes or quote of a raw string.
fn raw_prefix(rest: &str) -> Option<usize> {
    let prefix = ["r", "br", "cr"].into_iter().find(|p| {
        let after = rest.strip_prefix(p).map(|after| after.trim_start_matches('#'));
        after.is_some_and(|after| after.starts_with('"'))
    })?;
    Some(prefix.len())
}

/// A quote that starts a character and not a lifetime.
fn is_char_literal(rest: &str) -> bool {
    let mut letters = rest.chars().skip(1);
    matches!((letters.next(), letters.next()), (Some('\\'), _) | (Some(_), Some('\'')))
}

/// Whether `word` stands in `text` with no letter, digit or underscore beside it.
pub fn has_word(text: &str, word: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word).any(|(at, found)| {
        let before = text.get(..at).and_then(|t| t.chars().next_back());
        let after = text.get(at + found.len()..).and_then(|t| t.chars().next());
        !part(before) && !part(after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_not_code() {
        let text = "let a = \"unsafe // \\\" {\"; // unsafe {\nlet b = r#\"un\"safe\"#; /* x /* y */ z */ c";
        let found = layers(text);
        assert!(!found.code.contains("safe") && !found.code.contains('{'), "{}", found.code);
        assert!(found.code.trim_end().ends_with('c'));
        assert!(found.comments.contains("// unsafe {") && found.comments.contains("z */"));
        assert!(!found.comments.contains("let"));
    }

    #[test]
    fn both_layers_keep_the_lines() {
        let text = "a\n\"b\nc\"\n/* d\n */ e\n";
        let found = layers(text);
        let lines = |t: &str| t.matches('\n').count();
        assert_eq!((lines(&found.code), lines(&found.comments)), (5, 5));
        assert_eq!(found.code.chars().count(), text.chars().count());
    }

    #[test]
    fn a_lifetime_is_not_a_character_and_a_quote_character_is_none_of_a_string() {
        let found = layers("fn f<'a>(x: &'a str) { let q = '\"'; let z = '\\''; unsafe {} }");
        assert!(has_word(&found.code, "unsafe"), "{}", found.code);
        assert!(has_word(&found.code, "'a"), "{}", found.code);
    }

    #[test]
    fn a_word_is_not_found_inside_another() {
        assert!(has_word("// J1: x", "J1") && has_word("J1", "J1"));
        assert!(!has_word("J10 and xJ1 and J1_a", "J1"));
        assert!(!has_word("unsafe_code", "unsafe"));
    }
}
