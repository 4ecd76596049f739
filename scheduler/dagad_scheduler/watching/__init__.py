"""What a scheduler shows of evaluations: the board that is told, and the pages that show it."""
