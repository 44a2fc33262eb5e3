"""The eight layers of the extension (section 2.1.4), with a module for each family of layers."""
