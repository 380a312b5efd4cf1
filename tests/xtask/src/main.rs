//! The one developer tool: demo, test, ci, fabric
fn main() {}
