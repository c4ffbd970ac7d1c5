"""One module per thing that is watched; loaded when the module of the user's that it hooks is."""
