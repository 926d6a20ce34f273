"""Which operations a model performs, from the dispatcher."""
