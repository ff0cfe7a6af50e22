"""The front end: everything about a request that is not a stage step."""
