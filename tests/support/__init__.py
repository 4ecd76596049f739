"""What tests share: programs, clusters, and what is compared. Workers of the tests' clusters import it too."""
