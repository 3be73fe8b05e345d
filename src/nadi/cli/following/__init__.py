"""Commands of what follows streams and makes something of them: functions, lakes, search indexes."""
