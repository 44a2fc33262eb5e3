"""The eight layers of the extension (section 2.1.4), a module a family."""
