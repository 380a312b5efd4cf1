//! The metaroce command: run programs on a metaroce device, list devices, diagnose
fn main() {}
