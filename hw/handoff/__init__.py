"""These modules write and read Vivado's hardware hand-off file (.hwh)."""
