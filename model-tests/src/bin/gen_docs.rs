//! Writes the generated pages of the book; `make docs` calls it.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, io};

use atenea_model_tests::pages::{ERRORS, error_pages};

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = root.join(ERRORS);
    fs::create_dir_all(&folder)?;
    let pages = error_pages();
    let names: BTreeSet<&str> = pages.keys().map(String::as_str).collect();
    for entry in fs::read_dir(&folder)? {
        let entry = entry?;
        if entry.file_name().to_str().is_none_or(|name| !names.contains(name)) {
            fs::remove_file(entry.path())?;
        }
    }
    for (name, text) in &pages {
        fs::write(folder.join(name), text)?;
    }
    println!("{} pages in {ERRORS}", pages.len());
    Ok(())
}
