"""What several claims say."""

NO_FIGURE = "none: only the abstract was at hand, which prints no figure"
SIMULATED = " (simulated; the Azure traces on an engine assumed from a roofline)"
