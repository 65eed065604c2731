//! Every change that an export refuses, by its code.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use atenea_core::Code;
use atenea_workspace::export::Message;
use atenea_workspace::{
    CloneOptions, Filter, NoProgress, SealOptions, Sealed, diff_json, export_patch, read_ref, seal,
};
use support::{Bench, ada, bench, chmod, export_ref, git, name, raw};

fn message() -> Message {
    Message { text: "m".to_owned(), seconds: 1 }
}

fn cloned() -> Bench {
    let bench = bench().repository();
    symlink("/etc/hostname", bench.project.join("absolute")).unwrap();
    bench.commit("with a link that points outside");
    bench.clone();
    bench
}

fn codes(sealed: &Sealed) -> Vec<(String, Code)> {
    sealed.refused.iter().map(|refused| (refused.path.shown(), refused.code)).collect()
}

/// Seals, sees exactly this refusal, and that neither commit nor patch can be made.
fn assert_refused(bench: &Bench, path: &str, code: Code) {
    let sealed = bench.seal();
    assert_eq!(codes(&sealed), [(path.to_owned(), code)]);
    let (ref_name, source) = (raw("refs/atenea/x"), bench.source());
    let refused = export_ref(&bench.store, &sealed, &source, &ref_name, None, &message(), &ada());
    assert_eq!(refused.unwrap_err().code, code);
    let patch = export_patch(&bench.store, &sealed, &bench.path().join("p"));
    assert_eq!(patch.unwrap_err().code, code);
    assert_eq!(read_ref(&source, &ref_name).unwrap(), None);
}

#[test]
fn links_that_point_outside_are_refused_and_old_ones_stay() {
    for target in ["/etc/passwd", "../../x", "src/../../x", "absolute"] {
        let bench = cloned();
        assert_eq!(bench.seal().refused, [], "the base's own link is no change");
        symlink(target, bench.ws.join("evil")).unwrap();
        assert_refused(&bench, "evil", Code::ExportPathEscapes);
    }
    let bench = cloned();
    symlink("src/main.rs", bench.ws.join("fine")).unwrap();
    assert_eq!(bench.seal().refused, []);
}

#[test]
fn fifos_sockets_and_devices_are_refused() {
    let bench = cloned();
    let fifo = Command::new("mkfifo").arg(bench.ws.join("fifo")).status().unwrap();
    assert!(fifo.success());
    assert_refused(&bench, "fifo", Code::ExportSpecialFile);

    let bench = cloned();
    let _socket = std::os::unix::net::UnixListener::bind(bench.ws.join("socket")).unwrap();
    assert_refused(&bench, "socket", Code::ExportSpecialFile);

    // A device node can only be made by root; as anybody else the call itself must fail.
    let bench = cloned();
    let made = rustix::fs::mknodat(
        rustix::fs::CWD,
        bench.ws.join("null"),
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::from_raw_mode(0o666),
        rustix::fs::makedev(1, 3),
    );
    assert_eq!(made.is_ok(), rustix::process::geteuid().is_root());
    if made.is_ok() {
        assert_refused(&bench, "null", Code::ExportSpecialFile);
    }
}

#[test]
fn setuid_and_setgid_files_are_refused_also_after_they_were_given_away() {
    for mode in [0o4755, 0o2755] {
        let bench = cloned();
        bench.edit("suid", "x\n");
        chmod(&bench.ws.join("suid"), mode);
        assert_refused(&bench, "suid", Code::ExportSetuid);
    }
    let bench = cloned();
    bench.edit("suid", "x\n");
    let options = SealOptions { setuid: vec![raw("suid")], ..SealOptions::default() };
    let sealed = seal(&bench.ws, &bench.store, &options, &mut NoProgress).unwrap();
    assert_eq!(codes(&sealed), [("suid".to_owned(), Code::ExportSetuid)]);
}

#[test]
fn hard_links_are_refused_unless_the_content_is_the_bases_own() {
    let bench = cloned();
    let outside = bench.path().join("outside");
    std::fs::write(&outside, "not of this workspace\n").unwrap();
    std::fs::hard_link(&outside, bench.ws.join("evil")).unwrap();
    assert_refused(&bench, "evil", Code::ExportHardLink);

    let bench = cloned();
    std::fs::hard_link(bench.ws.join("README.md"), bench.path().join("second name")).unwrap();
    assert_eq!(bench.seal().refused, []);
}

#[test]
fn every_spelling_of_a_git_directory_is_refused() {
    for dir in [
        "sub/.git",
        ".GIT",
        "git~1",
        "GIT~1",
        ".git.",
        ".git ",
        ".git::$INDEX_ALLOCATION",
        ".g\u{200c}it",
        "\u{feff}.git",
        "sub/.Git",
        "a\\.git\\hooks",
    ] {
        let bench = cloned();
        bench.edit(format!("{dir}/config"), "[core]\n\tfsmonitor = evil\n");
        let sealed = bench.seal();
        assert_eq!(sealed.refused.len(), 1, "{dir:?}");
        assert_eq!(sealed.refused[0].path, raw(dir), "{dir:?}");
        assert_eq!(sealed.refused[0].code, Code::ExportGitPath, "{dir:?}");
        assert!(diff_json(&bench.store, &sealed).unwrap().is_empty(), "in no tree: {dir:?}");
    }
    let bench = cloned();
    symlink(".git/hooks", bench.ws.join("door")).unwrap();
    assert_refused(&bench, "door", Code::ExportGitPath);
}

#[test]
fn what_gits_own_check_refuses_is_left_out_with_its_words_and_the_rest_is_exported() {
    let bench = cloned();
    // A `.gitmodules` that names an option as its address: only git's own check knows of that.
    let bad = "[submodule \"x\"]\n\tpath = x\n\turl = -oProxyCommand=evil\n";
    bench.edit(".gitmodules", bad);
    bench.edit("sub/.gitmodules", "[submodule \"y\"]\n\tpath = y\n\turl = ./y\n");
    bench.edit("work.txt", "work\n");
    let sealed = bench.seal();
    assert_eq!(codes(&sealed), [(".gitmodules".to_owned(), Code::ExportBadPath)]);
    let why = sealed.refused[0].why.as_deref().unwrap();
    assert_eq!(why, "gitmodulesUrl: disallowed submodule url: -oProxyCommand=evil");
    assert_eq!(exported_files(&bench, &sealed), ["sub/.gitmodules", "work.txt"]);
    // In the place of one of the base, the base's own stays.
    let bench = bench_with_modules();
    bench.edit(".gitmodules", bad);
    bench.edit("work.txt", "work\n");
    let sealed = bench.seal();
    assert_eq!(codes(&sealed), [(".gitmodules".to_owned(), Code::ExportBadPath)]);
    assert_eq!(exported_files(&bench, &sealed), ["work.txt"]);
}

#[test]
fn a_link_in_the_place_of_gitmodules_is_left_out_and_the_rest_is_exported() {
    let bench = cloned();
    symlink("README.md", bench.ws.join(".gitmodules")).unwrap();
    bench.edit("work.txt", "work\n");
    let sealed = bench.seal();
    assert_eq!(codes(&sealed), [(".gitmodules".to_owned(), Code::ExportBadPath)]);
    assert_eq!(exported_files(&bench, &sealed), ["work.txt"]);
}

fn bench_with_modules() -> Bench {
    let bench = bench().repository();
    bench.write(".gitmodules", "[submodule \"y\"]\n\tpath = y\n\turl = ./y\n");
    bench.commit("with submodules");
    bench.clone();
    bench
}

/// Exports to a ref and as a patch, and gives the paths that changed in the repository: both agree.
fn exported_files(bench: &Bench, sealed: &Sealed) -> Vec<String> {
    let (ref_name, source) = (raw("refs/atenea/x"), bench.source());
    export_ref(&bench.store, sealed, &source, &ref_name, None, &message(), &ada()).unwrap();
    let listed = git(&bench.project, &["diff", "--name-only", "refs/atenea/x^", "refs/atenea/x"]);
    let patch = bench.path().join("patch");
    export_patch(&bench.store, sealed, &patch).unwrap();
    git(&bench.project, &["apply", patch.to_str().unwrap()]);
    git(&bench.project, &["add", "-A"]);
    assert_eq!(git(&bench.project, &["diff", "--cached", "--name-only"]), listed);
    git(&bench.project, &["fsck", "--strict"]);
    listed.lines().map(str::to_owned).collect()
}

#[test]
fn a_link_that_leads_outside_is_left_out_and_the_rest_is_exported() {
    let bench = cloned();
    symlink("/etc/passwd", bench.ws.join("evil")).unwrap();
    symlink("work.txt", bench.ws.join("fine")).unwrap();
    let fifo = Command::new("mkfifo").arg(bench.ws.join("fifo")).status().unwrap();
    assert!(fifo.success());
    bench.edit("work.txt", "work\n");
    let sealed = bench.seal();
    assert_eq!(
        codes(&sealed),
        [
            ("evil".to_owned(), Code::ExportPathEscapes),
            ("fifo".to_owned(), Code::ExportSpecialFile),
        ]
    );
    assert_eq!(exported_files(&bench, &sealed), ["fine", "work.txt"]);
    assert!(bench.project.join("absolute").is_symlink(), "the base's own link stays");
}

#[test]
fn a_new_link_through_a_link_of_the_base_that_stays_is_left_out_too() {
    let bench = cloned();
    // In the workspace `absolute` is a file, so `door` seems to stay inside; but the file is refused,
    // and the base's link to the outside stays in its place.
    std::fs::remove_file(bench.ws.join("absolute")).unwrap();
    bench.edit("absolute", "x\n");
    chmod(&bench.ws.join("absolute"), 0o4755);
    symlink("absolute", bench.ws.join("door")).unwrap();
    bench.edit("work.txt", "work\n");
    let sealed = bench.seal();
    assert_eq!(
        codes(&sealed),
        [("absolute".to_owned(), Code::ExportSetuid), ("door".to_owned(), Code::ExportPathEscapes),]
    );
    assert_eq!(exported_files(&bench, &sealed), ["work.txt"]);
}

#[test]
fn leaving_a_link_out_makes_no_other_link_lead_outside() {
    for (middle, refused) in [("fine", &[][..]), (".gitmodules", &[".gitmodules", "climbs"])] {
        let bench = cloned();
        bench.edit("a/b/file", "x\n");
        // Followed through the middle, the target stays inside; without it, it climbs out.
        symlink("a/b", bench.ws.join(middle)).unwrap();
        symlink(format!("{middle}/../../README.md"), bench.ws.join("climbs")).unwrap();
        let seen: Vec<String> = codes(&bench.seal()).into_iter().map(|(path, _)| path).collect();
        assert_eq!(seen, refused, "{middle}");
    }
}

#[test]
fn a_chain_of_links_that_falls_apart_piece_by_piece_is_left_out_whole() {
    let bench = cloned();
    // `l0` leads outside. Each other one leads there too, but a path is followed through forty
    // links only: those beyond are seen to lead outside when the ones before them are gone.
    symlink("/etc", bench.ws.join("l0")).unwrap();
    for n in 1..800 {
        let target = format!("l{}/../../README.md", n - 1);
        symlink(target, bench.ws.join(format!("l{n}"))).unwrap();
    }
    let sealed = bench.seal();
    assert_eq!(sealed.refused_total, 800);
    assert!(sealed.refused.iter().all(|refused| refused.code == Code::ExportPathEscapes));
    assert_eq!(sealed.changes, atenea_workspace::Changes::default());
}

#[test]
fn a_link_inside_a_submodule_that_leads_outside_is_in_no_patch() {
    let bench = bench().repository();
    let inner = bench.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    git(&inner, &["init", "-q", "-b", "main"]);
    std::fs::write(inner.join("file"), "inner\n").unwrap();
    git(&inner, &["add", "-A"]);
    git(&inner, &["commit", "-q", "-m", "inner"]);
    git(&bench.project, &["submodule", "--quiet", "add", inner.to_str().unwrap(), "sub"]);
    bench.commit("with a submodule");
    bench.clone();
    symlink("/etc/passwd", bench.ws.join("sub/evil")).unwrap();
    bench.edit("sub/file", "changed\n");
    let sealed = bench.seal();
    assert_eq!(
        codes(&sealed),
        [
            ("sub/evil".to_owned(), Code::ExportPathEscapes),
            ("sub/file".to_owned(), Code::ExportSubmodule),
        ]
    );
    let patch = bench.path().join("patch");
    export_patch(&bench.store, &sealed, &patch).unwrap();
    let text = std::fs::read_to_string(&patch).unwrap();
    assert!(text.contains("sub/file") && !text.contains("evil"), "{text}");
}

#[test]
fn what_was_written_can_be_sealed_far_above_the_limit_and_a_hole_is_refused_unread() {
    let bench = cloned();
    let options = SealOptions {
        limits: atenea_workspace::Limits { bytes: 1 << 20, ..Default::default() },
        ..SealOptions::default()
    };
    for n in 0..8 {
        bench.edit(format!("large{n}"), vec![n; 1 << 20]);
    }
    let sealed = seal(&bench.ws, &bench.store, &options, &mut NoProgress).unwrap();
    assert_eq!(sealed.changes.added, 8);
    // A terabyte takes hours to read: an answer at all shows that it was not.
    let hole = std::fs::File::create(bench.ws.join("hole")).unwrap();
    hole.set_len(1 << 40).unwrap();
    let refused = seal(&bench.ws, &bench.store, &options, &mut NoProgress).unwrap_err();
    assert_eq!(refused.code, Code::FsTooLarge);
    assert!(refused.help.contains("discard"), "{refused}");
    // Names for one file are not more bytes on the disk.
    std::fs::remove_file(bench.ws.join("hole")).unwrap();
    for n in 0..50 {
        std::fs::hard_link(bench.ws.join("large0"), bench.ws.join(format!("name{n}"))).unwrap();
    }
    let sealed = seal(&bench.ws, &bench.store, &options, &mut NoProgress).unwrap();
    assert_eq!((sealed.refused_total, sealed.changes.added), (51, 7));
}

#[test]
fn names_that_cannot_be_read_are_refused_and_never_lost_silently() {
    if rustix::process::geteuid().is_root() {
        // Root reads everything: nothing is refused, nothing is lost.
        let bench = cloned();
        bench.edit("closed/x", "x\n");
        chmod(&bench.ws.join("closed"), 0o000);
        let sealed = bench.seal();
        assert_eq!((sealed.refused.len(), sealed.changes.added), (0, 1));
        return;
    }
    let bench = cloned();
    bench.edit("closed/x", "x\n");
    chmod(&bench.ws.join("closed"), 0o000);
    let sealed = bench.seal();
    chmod(&bench.ws.join("closed"), 0o755);
    assert_eq!(codes(&sealed), [("closed".to_owned(), Code::FsNotYours)]);
}

#[test]
fn directories_deeper_than_the_bound_are_refused() {
    let bench = cloned();
    let deep = "d/".repeat(205);
    bench.edit(format!("{deep}x"), "x\n");
    let sealed = bench.seal();
    assert_eq!(sealed.refused.len(), 1);
    assert_eq!(sealed.refused[0].code, Code::ExportBadPath);
}

#[test]
fn a_file_beyond_the_ceiling_is_refused() {
    let bench = bench().repository();
    bench.write("secret/key", "k\n");
    bench.commit("second");
    bench.clone_with(&CloneOptions {
        filter: Filter { files: vec!["src/**".to_owned()], ..Filter::default() },
        ..CloneOptions::default()
    });
    bench.edit("secret/key", "planted\n");
    assert_refused(&bench, "secret/key", Code::ExportBadPath);
}

#[test]
fn a_refused_change_of_a_file_of_the_base_leaves_its_base_in_the_result() {
    let bench = cloned();
    bench.edit("README.md", "changed\n");
    chmod(&bench.ws.join("README.md"), 0o4755);
    let sealed = bench.seal();
    assert_eq!(codes(&sealed), [("README.md".to_owned(), Code::ExportSetuid)]);
    assert_eq!(sealed.changes, atenea_workspace::Changes::default());
}

#[test]
fn refs_that_mean_something_else_are_refused() {
    let bench = cloned();
    bench.edit("new", "x\n");
    let sealed = bench.seal();
    git(&bench.project, &["worktree", "add", "-q", "-b", "elsewhere", "../wt"]);
    let source = bench.source();
    for bad in [
        "HEAD",
        "main",
        "refs/heads/main",
        "refs/heads/elsewhere",
        "refs/replace/x",
        "refs/stash",
        "refs/bisect/bad",
        "refs/heads/a..b",
        "refs/heads/x.lock",
        "refs/",
        "refs/atenea/",
        "refs/heads/-x/../y",
        "../refs/heads/x",
        "refs/remotes/origin/x",
        "refs/heads/a b",
    ] {
        let refused =
            export_ref(&bench.store, &sealed, &source, &raw(bad), None, &message(), &ada());
        assert_eq!(refused.unwrap_err().code, Code::ExportBadRef, "{bad}");
    }
    let fine = raw("refs/heads/review");
    export_ref(&bench.store, &sealed, &source, &fine, None, &message(), &ada()).unwrap();
}

#[test]
fn a_ref_that_moved_is_not_overwritten() {
    let bench = cloned();
    bench.edit("new", "x\n");
    let sealed = bench.seal();
    let source = bench.source();
    let target = raw("refs/atenea/x");
    git(&bench.project, &["update-ref", "refs/atenea/x", "HEAD"]);
    let head = read_ref(&source, &target).unwrap();
    let export = |expected: Option<&str>| {
        export_ref(&bench.store, &sealed, &source, &target, expected, &message(), &ada())
    };
    assert_eq!(export(None).unwrap_err().code, Code::ExportRefExists);
    let wrong = "0123456789012345678901234567890123456789";
    assert_eq!(export(Some(wrong)).unwrap_err().code, Code::ExportRefExists);
    assert_eq!(read_ref(&source, &target).unwrap(), head);
    let exported = export(head.as_deref()).unwrap();
    assert_eq!(read_ref(&source, &target).unwrap(), Some(exported.commit));
}

#[test]
fn a_symbolic_ref_is_not_followed() {
    let bench = cloned();
    bench.edit("new", "x\n");
    let sealed = bench.seal();
    let head = git(&bench.project, &["rev-parse", "main"]);
    git(&bench.project, &["symbolic-ref", "refs/atenea/x", "refs/heads/main"]);
    let source = bench.source();
    let target = raw("refs/atenea/x");
    export_ref(&bench.store, &sealed, &source, &target, Some(head.trim()), &message(), &ada())
        .unwrap();
    assert_eq!(git(&bench.project, &["rev-parse", "main"]), head);
}

#[test]
fn exported_names_of_any_bytes_are_the_same_in_the_repository() {
    let bench = cloned();
    let names: [&[u8]; 6] =
        [b"caf\xe9", b"line\nbreak", b"tab\there", b"\"quoted\"", b":(top)x", b"* [a]?"];
    for bytes in names {
        bench.edit(name(bytes), "x\n");
    }
    let sealed = bench.seal();
    assert_eq!(sealed.refused, []);
    assert_eq!(sealed.changes.added, 6);
    let source = bench.source();
    let target = raw("refs/atenea/x");
    export_ref(&bench.store, &sealed, &source, &target, None, &message(), &ada()).unwrap();
    let listed = support::git_bytes(
        &bench.project,
        &["ls-tree", "-r", "-z", "--name-only", "refs/atenea/x"],
    );
    let listed: Vec<&[u8]> = listed.split(|byte| *byte == 0).collect();
    assert!(names.iter().all(|name| listed.contains(name)));
}

#[test]
fn a_top_level_git_is_never_part_of_the_result() {
    let bench = cloned();
    std::fs::remove_dir_all(bench.ws.join(".git")).unwrap();
    symlink("/etc", bench.ws.join(".git")).unwrap();
    let sealed = bench.seal();
    assert_eq!((sealed.refused.len(), sealed.changes), (0, atenea_workspace::Changes::default()));
    assert!(!Path::new("/etc/base.json").exists());
}
