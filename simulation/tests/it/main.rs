//! What the simulation has to be to prove anything, and the lives in which it found a defect of idem.

mod found;
mod repeatable;
