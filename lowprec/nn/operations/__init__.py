"""What each kind of operation does under a rule, registered by the torch functions that call it."""
