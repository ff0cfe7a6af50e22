"""Plants small faults in the code, one at a time, and counts those that a test catches: `make mutants`.

`operators` says what a fault is, `generate` finds all of a file and draws a sample, `swap` puts one into a process that has
everything imported, `record` knows which test runs which statement, `server` forks a process for each fault, `report` says what
came of it.
"""
