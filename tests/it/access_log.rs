//! Access logs: what lines say, where they go, and which requests get one.
