"""Networks of other frameworks, converted by OpenVINO, with results of their own runtimes."""
