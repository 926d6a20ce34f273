"""The model against published measurements: one row in, one prediction or one reason out."""
