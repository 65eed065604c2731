//! Commands that people are told to give: they lead to the same supervisor and can be pasted.

use std::path::Path;

use clap::CommandFactory;

use super::args::{Cli, Global};

/// The name of this program at the begin of a command.
const NAME: &str = "atenea-sup";

/// This program with the options that lead to the same supervisor, quoted for a shell.
pub(super) fn program(global: &Global) -> String {
    let mut text = NAME.to_owned();
    for (option, value) in [("--state-dir", &global.state_dir), ("--socket", &global.socket)] {
        if let Some(value) = value {
            text.push_str(&format!(" {option} {}", quoted(value)));
        }
    }
    text
}

fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    // Refused is NUL alone, which no path has.
    shlex::try_quote(&text).map_or_else(|_| text.to_string(), |quoted| quoted.into_owned())
}

/// A text whose commands of this program begin with `program`.
pub(super) fn with_program(text: &str, program: &str) -> String {
    let start = format!("{NAME} ");
    if program == NAME || !text.contains(&start) {
        return text.to_owned();
    }
    let commands = Cli::command();
    let is_command = |rest: &str| {
        let word = rest.split(|c: char| !c.is_ascii_lowercase()).next().unwrap_or_default();
        commands.find_subcommand(word).is_some()
    };
    let mut pieces = text.split(start.as_str());
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for rest in pieces {
        out.push_str(if is_command(rest) { program } else { NAME });
        out.push(' ');
        out.push_str(rest);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_of_the_place_are_repeated_and_quoted() {
        let mut global = Global::default();
        assert_eq!(program(&global), "atenea-sup");
        global.state_dir = Some("/srv/my state".into());
        assert_eq!(program(&global), "atenea-sup --state-dir '/srv/my state'");
        global.socket = Some("s".into());
        assert_eq!(program(&global), "atenea-sup --state-dir '/srv/my state' --socket s");
    }

    #[test]
    fn only_commands_get_the_options() {
        let text = "use a newer atenea-sup or `atenea-sup journal recover`; atenea-sup of 2026";
        let with = "use a newer atenea-sup or `atenea-sup --socket s journal recover`; \
                    atenea-sup of 2026";
        assert_eq!(with_program(text, "atenea-sup --socket s"), with);
        assert_eq!(with_program(text, "atenea-sup"), text);
    }
}
