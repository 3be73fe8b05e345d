// Errors of the server or another source of data.

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// No response from `peer`.
export class Lost extends Error {
  constructor(message, peer = "server") {
    super(message);
    this.peer = peer;
  }
}
