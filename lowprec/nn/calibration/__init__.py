"""Static scales, transforms and what they need to know of the activations."""
