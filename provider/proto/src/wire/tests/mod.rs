//! Tests of the codec as a whole: golden packets both ways, every cause of a drop, round trips
//! of random headers, hostile bytes, the table of fields against the codec, and that sentences cited in the code exist.

mod citations;
mod errors;
mod fields_test;
mod golden;
mod random;
mod segments;

use super::*;
