//! Writes the generated pages of the book; `make docs` calls it.

fn main() {}
