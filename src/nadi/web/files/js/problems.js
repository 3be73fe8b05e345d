// What goes wrong with who is asked, whoever that is.

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// No answer; `whom` is what one waits for.
export class Lost extends Error {
  constructor(message, whom = "server") {
    super(message);
    this.whom = whom;
  }
}
