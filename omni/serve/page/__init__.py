"""The page at `/`: plain files that talk to this server alone, and what the page shows beside answers."""
