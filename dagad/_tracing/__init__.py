"""Room 2: how numpy is differentiated: tape, forward mode, what traced arrays are to numpy, and what is patched."""
