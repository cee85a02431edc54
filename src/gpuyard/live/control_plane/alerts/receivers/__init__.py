"""Where notices go: a web address or mail addresses. A receiver sends one notification and fails with a sentence."""
