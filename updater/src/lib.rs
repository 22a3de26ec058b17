//! The update job.
