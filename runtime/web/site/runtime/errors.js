/** An error whose message is for the person in front of the page: it names the thing, the limit and the next step. */
export class SiteError extends Error {
  constructor(message, options) {
    super(message, options);
    this.name = "SiteError";
  }
}
