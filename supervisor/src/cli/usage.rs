//! What people are told about a command line that cannot be read.

use clap::error::{ContextKind, ContextValue};

/// The parser's error without tips that do not fit this program, and with one it does not find.
pub(super) fn polished(mut error: clap::Error) -> clap::Error {
    without_dashes(&mut error);
    with_part(&mut error);
    error
}

/// What follows `--` is the command of `run`, so the advice to put a value there is wrong.
fn without_dashes(error: &mut clap::Error) {
    let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) else {
        return;
    };
    tips.retain(|tip| !tip.to_string().contains("as a value, use"));
    if !tips.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
}

/// A part of exactly one choice means that choice: `write` is `workspace-write`.
fn with_part(error: &mut clap::Error) {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidValue) else { return };
    let Some(ContextValue::Strings(choices)) = error.get(ContextKind::ValidValue) else { return };
    if given.len() < 3 || error.get(ContextKind::SuggestedValue).is_some() {
        return;
    }
    let given = given.to_lowercase();
    let mut fitting = choices.iter().filter(|choice| choice.contains(&given));
    if let (Some(only), None) = (fitting.next(), fitting.next()) {
        let tip = ContextValue::String(only.clone());
        error.insert(ContextKind::SuggestedValue, tip);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::args::Cli;

    fn said(args: &[&str]) -> String {
        let whole = [&["atenea-sup"], args].concat();
        polished(Cli::try_parse_from(whole).unwrap_err()).to_string()
    }

    #[test]
    fn a_part_of_one_choice_is_taken_for_a_slip() {
        let write = said(&["run", "--profile", "write", "--", "true"]);
        assert!(write.contains("'workspace-write'"), "{write}");
        let nothing = said(&["budget", "set", "a", "1", "--per", "week"]);
        assert!(nothing.contains("[possible values: day, month, total]"), "{nothing}");
        assert!(!nothing.contains("tip:"), "{nothing}");
    }

    #[test]
    fn nobody_is_told_to_put_a_value_behind_the_dashes_of_the_command() {
        for args in [&["run", "--name", "-x"][..], &["status", "-5"], &["run", "--nosuch"]] {
            let said = said(args);
            assert!(said.contains("unexpected argument") && !said.contains("'-- "), "{said}");
        }
    }
}
