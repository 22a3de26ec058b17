//! What needs to see inside: a publisher that is killed in front of any of its writes.
