//! Completion scripts of shells.

use clap::CommandFactory;
use clap_complete::Shell;

use super::args::Cli;

/// The script of a shell.
pub(super) fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    let mut command = shown(&Cli::command());
    clap_complete::generate(shell, &mut command, "atenea-sup", &mut script);
    if shell != Shell::Bash {
        return script;
    }
    // clap_complete 4.6 names a command's state after the program with `-` as `__` where it sets the
    // state, and with `-` as `__subcmd__` where it looks at it, so that below the first word
    // nothing of a program with a hyphen would ever fit.
    let text = String::from_utf8_lossy(&script);
    text.replace("atenea__subcmd__sup", "atenea__sup").into_bytes()
}

/// The commands that people are shown: completion scripts would offer the hidden ones too.
fn shown(whole: &clap::Command) -> clap::Command {
    let visible = whole.get_subcommands().filter(|command| !command.is_hide_set());
    clap::Command::new("atenea-sup")
        .version(env!("CARGO_PKG_VERSION"))
        .args(whole.get_arguments())
        .subcommands(visible)
}
