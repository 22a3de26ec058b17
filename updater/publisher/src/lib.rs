//! Making and signing releases.
