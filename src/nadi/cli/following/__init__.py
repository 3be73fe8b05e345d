"""Commands of what follows streams and makes something of them: functions and lakes."""
