//! Rules about single Rust files.

use super::lexer::{has_word, layers};

/// Lines of a file at most.
pub const FILE_LINES_MAX: usize = 800;
/// Code lines of a function's body at most.
pub const FUNCTION_LINES_MAX: usize = 70;

/// Whether a path holds only tests.
pub fn is_test_file(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    path.starts_with("model-tests/")
        || path.split('/').any(|part| part == "tests" || part == "fixtures" || part == "benches")
        || name == "tests.rs"
        || name.ends_with("_tests.rs")
}

/// A file that is too long, in words.
pub fn too_long(text: &str) -> Option<String> {
    let lines = text.lines().count();
    (lines > FILE_LINES_MAX).then(|| format!("{lines} lines, at most {FILE_LINES_MAX}"))
}

/// Functions that are too long, with their code lines.
pub fn long_functions(text: &str) -> Vec<String> {
    let code = layers(text).code;
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let starts_word = code.get(..at).and_then(|t| t.chars().next_back());
        if starts_word.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let after = code.get(at + 3..).unwrap_or_default();
        let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let Some(body) = body(after) else { continue };
        let lines = body.lines().filter(|line| !line.trim().is_empty()).count();
        // The lines of the braces do not count.
        let lines = lines.saturating_sub(2);
        if !name.is_empty() && lines > FUNCTION_LINES_MAX {
            found.push(format!("fn {name} has {lines} code lines, at most {FUNCTION_LINES_MAX}"));
        }
    }
    found
}

/// The block that follows a signature, braces included; `None` for a declaration without one.
fn body(after: &str) -> Option<&str> {
    let mut round = 0i32;
    let mut start = None;
    let mut depth = 0i32;
    for (at, letter) in after.char_indices() {
        match (letter, start) {
            ('(' | '[', None) => round += 1,
            (')' | ']', None) => round -= 1,
            (';', None) if round == 0 => return None,
            ('{', None) if round == 0 => {
                start = Some(at);
                depth = 1;
            }
            ('{', Some(_)) => depth += 1,
            ('}', Some(begin)) => {
                depth -= 1;
                if depth == 0 {
                    return after.get(begin..=at);
                }
            }
            _ => {}
        }
    }
    None
}

/// The text without its `#[cfg(test)]` modules and that of these modules.
pub fn split_tests(text: &str) -> (String, String) {
    let layers = layers(text);
    let (mut product, mut tests) = (String::new(), String::new());
    // Both layers have one character for each of the text, so places are counted in characters.
    let (mut code, mut text) = (layers.code.as_str(), text);
    while let Some(at) = code.find(CFG_TEST) {
        let (before, item) = code.split_at(at);
        let (kept, rest) = split_chars(text, before.chars().count());
        let length = CFG_TEST.len() + item_length(item.get(CFG_TEST.len()..).unwrap_or_default());
        let (test, rest) = split_chars(rest, length);
        product.push_str(kept);
        tests.push_str(test);
        (code, text) = (split_chars(item, length).1, rest);
    }
    product.push_str(text);
    (product, tests)
}

fn split_chars(text: &str, count: usize) -> (&str, &str) {
    text.split_at(text.char_indices().nth(count).map_or(text.len(), |(at, _)| at))
}

const CFG_TEST: &str = "#[cfg(test)]";

/// Characters up to the end of the item that follows.
fn item_length(rest: &str) -> usize {
    let mut depth = 0i32;
    for (n, letter) in rest.chars().enumerate() {
        match letter {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth <= 0 {
                    return n + 1;
                }
            }
            ';' if depth == 0 => return n + 1,
            _ => {}
        }
    }
    rest.chars().count()
}

/// Places that may hold `unsafe`, as prefixes of paths.
pub const UNSAFE_PLACES: [&str; 6] = [
    "launcher/src/sys",
    "launcher/cgroup/src/sys",
    "launcher/init/",
    "launcher/tests/sys",
    "reaper/src/sys",
    "broker/guest/",
];

/// Crates that have such places; every other one forbids `unsafe`.
pub const UNSAFE_CRATES: [&str; 5] =
    ["launcher", "launcher/cgroup", "launcher/init", "reaper", "broker/guest"];

/// Words that must not stand in a file's code.
pub fn banned_words(path: &str, text: &str) -> Vec<String> {
    let code = layers(text).code;
    let mut banned = vec!["todo!", "unimplemented!", "dbg!"];
    if path.starts_with("supervisor/core/src/") {
        banned.extend(IMPURE);
    }
    // They panic when nothing can be written, and the log lies on the disk that fills up.
    if path.contains("src/") && !is_test_file(path) && !path.starts_with("broker/guest/") {
        let prints = PRINTS.into_iter().filter(|word| has_word(&code, word));
        banned.extend(prints);
    }
    let mut found: Vec<String> = banned
        .into_iter()
        .filter(|word| code.contains(word))
        .map(|word| format!("has {word}"))
        .collect();
    if code.contains("#[ignore") {
        found.push("skips a test".to_owned());
    }
    if has_word(&code, "unsafe") && !UNSAFE_PLACES.iter().any(|place| path.starts_with(place)) {
        found.push("has unsafe code outside the places for it".to_owned());
    }
    found
}

/// What panics when its stream cannot be written.
const PRINTS: [&str; 4] = ["print!", "println!", "eprint!", "eprintln!"];

/// What the pure core must not mention: IO, clocks, threads, environment.
const IMPURE: [&str; 13] = [
    "std::fs",
    "std::io",
    "std::net",
    "std::env",
    "std::thread",
    "std::process",
    "std::time::Instant",
    "SystemTime",
    "Instant::now",
    "File::",
    "tokio",
    "Timestamp::now",
    "Zoned::now",
];

/// Whether a crate's root file forbids `unsafe`.
pub fn forbids_unsafe(text: &str) -> bool {
    layers(text).code.replace(' ', "").contains("#![forbid(unsafe_code)]")
}

/// Paths of the machines this is built on, in two parts so that this file does not name them.
const MACHINE_PATHS: [(&str, &str); 8] = [
    ("/wo", "rk/main"),
    ("/wo", "rk/shared"),
    ("/wo", "rk/target"),
    ("/wo", "rk/."),
    ("/ro", "ot/.cargo"),
    ("/ro", "ot/.rustup"),
    ("/ro", "ot/.pyenv"),
    ("/tm", "p/brief"),
];

/// Paths of the machine the text was written on.
pub fn machine_paths(text: &str) -> Vec<String> {
    let places = MACHINE_PATHS.iter().map(|(a, b)| format!("{a}{b}"));
    places.filter(|p| text.contains(p.as_str())).map(|p| format!("mentions {p}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(lines: usize) -> String {
        format!("fn long(a: [u8; 2]) -> u8 {{\n{}}}\nfn short() {{}}\n", "    a();\n".repeat(lines))
    }

    #[test]
    fn a_function_of_71_code_lines_is_found_and_one_of_70_is_not() {
        assert_eq!(long_functions(&function(70)), Vec::<String>::new());
        assert_eq!(long_functions(&function(71)), ["fn long has 71 code lines, at most 70"]);
        let comments = function(70).replace("a();\n", "a();\n // more\n\n");
        assert_eq!(long_functions(&comments), Vec::<String>::new());
    }

    #[test]
    fn a_file_of_801_lines_is_found() {
        assert!(too_long(&"x\n".repeat(801)).is_some());
        assert!(too_long(&"x\n".repeat(800)).is_none());
    }

    #[test]
    fn the_test_part_of_a_file_is_separated() {
        let text = "// J1: code\nfn a() {}\n#[cfg(test)]\nmod tests {\n fn b() { let s = \"}\"; }\n // J2\n}\n// J3\n";
        let (product, tests) = split_tests(text);
        assert!(product.contains("J1") && product.contains("J3") && !product.contains("J2"));
        assert!(tests.contains("J2") && !tests.contains("J3"), "{tests}");
        let (product, _) = split_tests("#[cfg(test)]\n#[path = \"x.rs\"]\nmod tests;\nfn c() {}\n");
        assert_eq!(product.trim(), "fn c() {}");
    }

    #[test]
    fn a_clock_in_the_core_is_found_and_one_in_a_comment_is_not() {
        let path = "supervisor/core/src/x.rs";
        assert_eq!(banned_words(path, "let t = SystemTime::now();"), ["has SystemTime"]);
        assert_eq!(banned_words(path, "// SystemTime::now() is an input"), Vec::<String>::new());
        assert_eq!(banned_words("supervisor/src/x.rs", "SystemTime"), Vec::<String>::new());
    }

    #[test]
    fn unsafe_outside_its_places_todo_and_ignored_tests_are_found() {
        assert_eq!(banned_words("launcher/src/sys/a.rs", "unsafe { x() }"), Vec::<String>::new());
        assert_eq!(banned_words("broker/src/a.rs", "unsafe { x() }").len(), 1);
        assert_eq!(banned_words("journal/src/a.rs", "eprintln!(1)"), ["has eprintln!"]);
        assert_eq!(banned_words("journal/tests/a.rs", "println!(1)"), Vec::<String>::new());
        assert_eq!(banned_words("a.rs", "todo!()"), ["has todo!"]);
        assert_eq!(banned_words("a.rs", "#[ignore = \"x\"]\nfn a() {}"), ["skips a test"]);
        assert!(!forbids_unsafe("// #![forbid(unsafe_code)]\n"));
        assert!(forbids_unsafe("//! x\n#![forbid(unsafe_code)]\n"));
    }

    #[test]
    fn a_path_of_a_build_machine_is_found() {
        let text = concat!("see /wo", "rk/main/x");
        assert_eq!(machine_paths(text), [concat!("mentions /wo", "rk/main")]);
        assert_eq!(machine_paths("see /workspace/main, /root/x"), Vec::<String>::new());
    }
}
