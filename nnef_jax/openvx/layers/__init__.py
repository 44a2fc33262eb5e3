"""The eight layers of the extension (2.1.4), a module a family."""
