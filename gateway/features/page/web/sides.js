// What was asked, what the model wrote and what the client got, for a view that shows them on demand.
export {Sides as default} from "./detail.js";
