"""Room 9: what is shown of evaluations while they run, in terminals, notebooks and files."""
