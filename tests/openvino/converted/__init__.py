"""Networks of other frameworks, which OpenVINO converts, with what their own runtimes compute."""
