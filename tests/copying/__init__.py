"""`dw store copy`: a database moves to another one, and everything goes on there."""
