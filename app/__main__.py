"""Start the dashboard, as `streamlit run app/main.py` does."""

import sys

from streamlit.web.cli import main

if __name__ == "__main__":
    sys.argv = ["streamlit", "run", "app/main.py", *sys.argv[1:]]
    main()
