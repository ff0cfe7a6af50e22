"""The page at `/`: plain files that talk to this server alone, and the data that the page shows besides answers."""
