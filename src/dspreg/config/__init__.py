"""What the user asks for, as typed values: training, execution, measuring, data sets. No torch in here."""
