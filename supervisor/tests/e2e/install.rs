//! `make install` and its way back.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Out, World, host, program};

/// Calls the script for an image of a machine, so that no service manager is asked.
#[track_caller]
fn script(dest: &Path, what: &str, from: &Path) -> Out {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/install");
    let mut command = Command::new(script);
    command.arg(what).arg(from).env("DESTDIR", dest).env("PREFIX", "/usr/local");
    host(&mut command)
}

fn current(dest: &Path) -> PathBuf {
    std::fs::read_link(dest.join("usr/local/lib/atenea/current")).unwrap()
}

#[test]
fn an_installed_version_works_is_replaced_whole_and_comes_back() {
    let world = World::new();
    let dest = world.dir().join("image");
    let old = program().parent().unwrap();
    script(&dest, "install", old).ends(0);
    let installed = dest.join("usr/local/bin/atenea-sup");
    let unit = dest.join("usr/local/lib/systemd/system/atenea-sup.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    assert!(unit.contains("\nExecStart=/usr/local/bin/atenea-sup daemon --state-dir "), "{unit}");
    for page in ["atenea-sup.1", "atenea-sup-run.1"] {
        let page = dest.join("usr/local/share/man/man1").join(page);
        assert!(std::fs::read_to_string(&page).unwrap().starts_with(".ie"), "{}", page.display());
    }
    let mut run = Command::new(&installed);
    world.with_options(&mut run);
    host(run.args(["run", "--", "sh", "-c", "exit 7"])).ends(7);
    world.sup(&["stop"]).ends(0);
    let first = current(&dest);

    let new = world.dir().join("new");
    std::fs::create_dir(&new).unwrap();
    for name in ["atenea-sup", "atenea-init", "atenea-guest"] {
        std::fs::copy(old.join(name), new.join(name)).unwrap();
    }
    std::fs::write(new.join("atenea-guest"), "another one").unwrap();
    script(&dest, "install", &new).ends(0);
    assert_ne!(current(&dest), first);
    script(&dest, "rollback", &new).ends(0);
    assert_eq!(current(&dest), first);

    script(&dest, "uninstall", &new).ends(0);
    let files = host(Command::new("find").arg(&dest).args(["-not", "-type", "d"])).ends(0).out;
    assert_eq!(files, "", "something is left");
    script(&dest, "rollback", &new).ends(1);
}
