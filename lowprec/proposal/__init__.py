"""The proposal: what a vendor receives, and how they check their silicon against it."""
