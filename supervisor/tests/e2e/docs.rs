//! The command reference is what the program says about itself.

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
