//! The command reference is what the program says about itself.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use atenea_sup::cli::args::Cli;
use clap::CommandFactory;

use crate::support::{host, program};

const HEAD: &str = "# Commands\n\nThe help of every command, as the program prints it. Made by \
    `UPDATE_GOLDEN=1 cargo test -p atenea-sup --test e2e docs`; do not edit it.\n";

/// Every command that people are shown, with its sub-commands, in the order of the help.
fn paths(command: &clap::Command, above: &[String], all: &mut Vec<Vec<String>>) {
    all.push(above.to_vec());
    for below in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        paths(below, &[above, &[below.get_name().to_owned()]].concat(), all);
    }
}

#[test]
fn the_command_reference_is_the_help_of_every_command() {
    let mut all = Vec::new();
    paths(&Cli::command(), &[], &mut all);
    assert!(all.len() > 20, "{all:?}");
    let mut text = HEAD.to_owned();
    for path in &all {
        let mut command = Command::new(program());
        let help = host(command.args(path).arg("--help").env("COLUMNS", "100")).ends(0).out;
        let name = [&["atenea-sup".to_owned()], &path[..]].concat().join(" ");
        write!(text, "\n## {name}\n\n```text\n{}\n```\n", help.trim_end()).unwrap();
    }
    for hidden in ["__supervisor", "__launcher", "__workspace", "--crash"] {
        assert!(!text.contains(hidden), "{hidden} is shown to people");
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cli.md");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(kept == text, "docs/cli.md is not what the program says; see its first lines");
}

/// Where the manual pages are kept, which `scripts/install` installs.
fn manual() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/man")
}

/// Every page by its file name: one of the program and one of each command that people are shown.
fn pages() -> BTreeMap<String, String> {
    let mut pages = BTreeMap::new();
    page(visible(Cli::command().max_term_width(0)), "atenea-sup", &mut pages);
    pages
}

/// Without the hidden commands: the generator lists them.
fn visible(whole: clap::Command) -> clap::Command {
    let shown: Vec<clap::Command> =
        whole.get_subcommands().filter(|c| !c.is_hide_set()).cloned().map(visible).collect();
    let name = whole.get_name().to_owned();
    let mut bare = clap::Command::new(name).args(whole.get_arguments()).subcommands(shown);
    // Only the program itself has a version, as the parser has it.
    bare = match whole.get_version() {
        Some(version) => bare.version(version.to_owned()),
        None => bare.disable_version_flag(true),
    };
    if let Some(about) = whole.get_about() {
        bare = bare.about(about.clone());
    }
    match whole.get_after_help() {
        Some(more) => bare.after_help(more.clone()),
        None => bare,
    }
}

fn page(command: clap::Command, name: &str, pages: &mut BTreeMap<String, String>) {
    for below in command.get_subcommands() {
        let name = format!("{name}-{}", below.get_name());
        page(below.clone(), &name, pages);
    }
    let shown = name.replacen("atenea-sup-", "atenea-sup ", 1);
    let command = command.name(name.to_owned()).bin_name(shown).disable_help_subcommand(true);
    let mut text = Vec::new();
    let source = concat!("atenea-sup ", env!("CARGO_PKG_VERSION"));
    clap_mangen::Man::new(command).source(source).render(&mut text).unwrap();
    pages.insert(format!("{name}.1"), String::from_utf8(text).unwrap());
}

#[test]
fn the_manual_pages_are_what_the_command_line_says() {
    let pages = pages();
    assert!(pages.len() > 20 && pages.contains_key("atenea-sup-run.1"), "{:?}", pages.keys());
    let dir = manual();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        for (name, text) in &pages {
            std::fs::write(dir.join(name), text).unwrap();
        }
    }
    let entries = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap());
    let kept: BTreeMap<String, String> = entries
        .map(|entry| {
            let text = std::fs::read_to_string(entry.path()).unwrap();
            (entry.file_name().into_string().unwrap(), text)
        })
        .collect();
    let differ = |name: &&String| pages.get(*name) != kept.get(*name);
    let wrong: Vec<&String> = pages.keys().chain(kept.keys()).filter(differ).collect();
    assert!(
        wrong.is_empty(),
        "not what the command line says; UPDATE_GOLDEN=1 makes it: {wrong:?}"
    );
    let all: String = pages.into_values().collect();
    assert!(!all.contains("__supervisor") && !all.contains("\\-\\-crash"), "shown to people");
    // Control: what is looked for there is written like this.
    assert!(all.contains("\\-\\-idempotency\\-key"));
}
